# Turns the text of a terminal session into an SVG picture:
#   awk -f term.awk session.txt >session.svg
# Lines that begin with "$ " are what was typed.
{ gsub(/\t/, "    "); gsub(/&/, "\\&amp;"); gsub(/</, "\\&lt;"); gsub(/>/, "\\&gt;"); text[NR] = $0; if (length($0) > wide) wide = length($0) }
END {
	w = wide * 7.85 + 40; h = NR * 18 + 56
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", w, h, w, h
	printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#1b1f27\"/>\n", w, h
	split("#ff5f56 #ffbd2e #27c93f", dot, " ")
	for (i = 1; i <= 3; i++) printf "<circle cx=\"%d\" cy=\"18\" r=\"6\" fill=\"%s\"/>\n", i * 20, dot[i]
	print "<g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\" xml:space=\"preserve\">"
	for (i = 1; i <= NR; i++) {
		colour = text[i] ~ /^\$ / ? "#ffffff\" font-weight=\"bold" : "#b8c0cc"
		printf "<text x=\"20\" y=\"%d\" fill=\"%s\">%s</text>\n", 46 + (i - 1) * 18, colour, text[i]
	}
	print "</g>\n</svg>"
}
