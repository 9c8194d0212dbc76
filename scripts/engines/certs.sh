#!/usr/bin/env bash
# A throw-away certificate authority for tests of TLS: certs.sh DIR. What is there
# already is left as it is.
#
#	ca.pem ca.key          the authority
#	server.pem server.key  for localhost and 127.0.0.1 to 127.0.0.3
#	client.pem client.key  a client certificate of the same authority (CN notifyd)
#	server.p12 trust.p12   the same for Java; the password is in store.password
#	other-ca.pem           another authority, which signed none of these
#	other-client.pem .key  a client certificate of that one
set -euo pipefail

dir=${1:?usage: certs.sh DIR}
command -v openssl >/dev/null || { echo 'engines: openssl is missing: apt-get install openssl' >&2; exit 1; }
umask 077
mkdir -p "$dir"
cd "$dir"
[ ! -e .complete ] || exit 0

# authority NAME SUBJECT
authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$2" \
		-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$1.key" -out "$1.pem"
}

# leaf NAME CN AUTHORITY EXTENSIONS
leaf() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$1.key" -out "$1.csr"
	openssl x509 -req -in "$1.csr" -CA "$3.pem" -CAkey "$3.key" -CAcreateserial -days 3650 -out "$1.pem" -extfile <(printf '%s\n' "$4")
	rm "$1.csr"
}

make_all() {
	authority ca 'notifyd test authority'
	authority other-ca 'another authority'
	leaf server localhost ca $'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3\nextendedKeyUsage=serverAuth,clientAuth'
	leaf client notifyd ca extendedKeyUsage=clientAuth
	leaf other-client notifyd other-ca extendedKeyUsage=clientAuth
	openssl rand -hex 16 >store.password
	openssl pkcs12 -export -name server -in server.pem -inkey server.key -certfile ca.pem -out server.p12 -passout file:store.password
	if command -v keytool >/dev/null; then
		rm -f trust.p12
		keytool -importcert -noprompt -alias ca -file ca.pem -keystore trust.p12 -storetype PKCS12 -storepass "$(cat store.password)"
	fi
}

make_all >make.log 2>&1 || { echo "engines: the certificates cannot be made, see $dir/make.log" >&2; exit 1; }
touch .complete
