# Turns a captured terminal screen into a page of HTML:
#   tmux capture-pane -e -p | awk -f screen.awk >screen.html
# It knows the attributes that notifyctl draws: bold, faint, reverse, and the
# eight colours.
function attributes(codes,    n, i, c, list) {
	n = split(codes == "" ? "0" : codes, list, ";")
	for (i = 1; i <= n; i++) {
		c = list[i] + 0
		if (c == 0) { bold = faint = reverse = 0; fore = back = "" }
		else if (c == 1) bold = 1
		else if (c == 2) faint = 1
		else if (c == 22) bold = faint = 0
		else if (c == 7) reverse = 1
		else if (c == 27) reverse = 0
		else if (c >= 30 && c <= 37) fore = hue[c - 30]
		else if (c >= 90 && c <= 97) fore = hue[c - 90]
		else if (c == 39) fore = ""
		else if (c >= 40 && c <= 47) back = hue[c - 40]
		else if (c == 49) back = ""
	}
}
function span(text,    f, b, t) {
	if (text == "") return
	gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
	f = fore == "" ? "#d5dae3" : fore; b = back == "" ? "#1b1f27" : back
	if (reverse) { t = f; f = b; b = t }
	printf "<span style=\"color:%s;background:%s%s%s\">%s</span>", f, b, bold ? ";font-weight:bold" : "", faint ? ";opacity:.6" : "", text
}
BEGIN {
	split("#4b5363 #ff6b68 #7ec699 #f0c674 #7aa6ff #c397d8 #6cc7d9 #ffffff", list, " ")
	for (i = 1; i <= 8; i++) hue[i - 1] = list[i]
	print "<!doctype html><meta charset=utf-8><style>body{margin:0;background:#1b1f27;padding:14px}pre{margin:0;font:15px/19px 'DejaVu Sans Mono',Menlo,Consolas,monospace}</style><pre>"
}
{
	rest = $0
	while (match(rest, /\033\[[0-9;]*m/)) {
		span(substr(rest, 1, RSTART - 1))
		attributes(substr(rest, RSTART + 2, RLENGTH - 3))
		rest = substr(rest, RSTART + RLENGTH)
	}
	span(rest)
	print ""
}
END { print "</pre>" }
