# Turns a captured terminal screen into a page of HTML:
#   tmux capture-pane -e -p | awk -f screen.awk >screen.html
# It knows the attributes that notifyctl draws: bold, faint, reverse, and colours:
# the eight, those of 256, and those by their parts.
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
		else if (c == 38 && list[i + 1] == 5) { fore = indexed(list[i + 2] + 0); i += 2 }
		else if (c == 38 && list[i + 1] == 2) { fore = sprintf("#%02x%02x%02x", list[i + 2], list[i + 3], list[i + 4]); i += 4 }
		else if (c == 39) fore = ""
		else if (c >= 40 && c <= 47) back = hue[c - 40]
		else if (c == 49) back = ""
	}
}
# indexed is one of the 256 colours: the eight, again bright, a cube of 6, and greys.
function indexed(n,    level, r, g, b) {
	if (n < 16) return hue[n % 8]
	if (n >= 232) { level = 8 + (n - 232) * 10; return sprintf("#%02x%02x%02x", level, level, level) }
	n -= 16; r = int(n / 36); g = int(n / 6) % 6; b = n % 6
	return sprintf("#%02x%02x%02x", r ? 55 + r * 40 : 0, g ? 55 + g * 40 : 0, b ? 55 + b * 40 : 0)
}
function span(text,    f, b, t) {
	if (text == "") return
	gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text)
	# Signs may come from another font, whose width is another: each gets a cell.
	# Braille, which is wider there, is made narrow.
	gsub(/\342[\240-\243][\200-\277]/, "<b>&</b>", text)
	gsub(/\342[\200-\237\244-\277][\200-\277]/, "<i>&</i>", text)
	f = fore == "" ? "#d5dae3" : fore; b = back == "" ? "#1b1f27" : back
	if (reverse) { t = f; f = b; b = t }
	printf "<span style=\"color:%s;background:%s%s%s\">%s</span>", f, b, bold ? ";font-weight:bold" : "", faint ? ";opacity:.6" : "", text
}
BEGIN {
	split("#4b5363 #ff6b68 #7ec699 #f0c674 #7aa6ff #c397d8 #6cc7d9 #ffffff", list, " ")
	for (i = 1; i <= 8; i++) hue[i - 1] = list[i]
	print "<!doctype html><meta charset=utf-8><style>body{margin:0;background:#1b1f27;padding:14px}pre{margin:0;font:15px/19px 'DejaVu Sans Mono',Menlo,Consolas,monospace}i,b{display:inline-block;width:1ch;height:19px;vertical-align:top;font-style:normal;font-weight:inherit}b{transform:scaleX(.823);transform-origin:left}</style><pre>"
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
