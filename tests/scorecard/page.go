package main

import (
	"bytes"
	"html/template"
	"math"
	"strconv"
)

// bar is one line of a chart. It shows a figure and its limit.
type bar struct {
	Name, Value, Need string
	Width, Limit      float64 // percent of the chart's width; Limit 0: the chart shows no limit
	Pass              bool
}

// bars returns the chart of a proof's figures. All figures with the same unit have the same scale.
func (p *Part) bars() (out []bar) {
	most := map[string]float64{}
	for _, f := range p.Figures {
		most[f.Unit] = max(most[f.Unit], f.Value, f.Limit)
	}
	for _, f := range p.Figures {
		scale := func(v float64) float64 {
			if v <= 0 {
				return 0
			}
			// Without the square root, a bar of 100 duplicates would not be visible beside a bar of
			// a million messages.
			return math.Round(1000*math.Sqrt(v/most[f.Unit])) / 10
		}
		b := bar{Name: f.Name, Value: formatFigure(f.Value, f.Unit), Need: f.Need, Width: scale(f.Value), Pass: f.Pass}
		if f.Need != "" {
			b.Limit = scale(f.Limit)
		}
		out = append(out, b)
	}
	return out
}

// formatFigure returns a figure with its unit as text.
func formatFigure(v float64, unit string) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if unit != "" {
		s += " " + unit
	}
	return s
}

// page returns the card as an HTML page. The page loads no other file.
func (c *Card) page() ([]byte, error) {
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, c)
	return b.Bytes(), err
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bars": func(p Part) []bar { return p.bars() },
	"add":  func(a, b float64) float64 { return a + b },
	"y":    func(i int) int { return 26 * i },
	"high": func(b []bar) int { return 26*len(b) + 2 },
	"word": func(pass bool) string {
		if pass {
			return "holds"
		}
		return "broken"
	},
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>notifyd scorecard</title>
<meta name="viewport" content="width=device-width,initial-scale=1">
<style>
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .2rem}
.holds{color:#0a7a3d}.broken{color:#b3261e}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:#5b6b7b}dd{margin:0;overflow-wrap:anywhere}
code{font-size:.85em;overflow-wrap:anywhere}svg text{font:13px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{color:#dde5ec;background:#12181f}dt{color:#93a4b4}.holds{color:#4cc98a}.broken{color:#ff8a80}}
</style></head><body>
<h1>notifyd scorecard: <span class="{{word .Pass}}">{{if .Pass}}every promise holds{{else}}a promise is broken{{end}}</span></h1>
<dl>
<dt>commit</dt><dd><code>{{.Commit}}</code>{{if .Changed}}, with changes{{end}}</dd>
<dt>measured</dt><dd>{{.Started.Format "2006-01-02 15:04:05"}} to {{.Ended.Format "15:04:05 MST"}}</dd>
<dt>machine</dt><dd>{{.Machine.CPUs}} × {{.Machine.CPU}}, {{.Machine.Memory}}, {{.Machine.OS}}/{{.Machine.Arch}} {{.Machine.Kernel}}, {{.Machine.Go}}, load before {{.Machine.Load}}</dd>
<dt>signer</dt><dd><code>{{.Signer}}</code></dd>
</dl>
{{range .Parts}}<h2>{{.Name}} <span class="{{word .Pass}}">{{word .Pass}}</span></h2>
<p>{{.Promise}}. {{printf "%.0f" .Seconds}} s.{{if .Error}} <span class="broken">{{.Error}}</span>{{end}}</p>
{{with $b := bars .}}<svg viewBox="0 0 760 {{high $b}}" width="100%" role="img">
{{range $i, $f := $b}}<g transform="translate(0,{{y $i}})" class="{{word $f.Pass}}"><text x="0" y="17">{{$f.Name}}</text>
<svg x="200" y="4" width="300" height="18" viewBox="0 0 100 18" preserveAspectRatio="none"><rect width="100" height="18" fill="currentColor" opacity=".1"/><rect width="{{$f.Width}}" height="18" fill="currentColor" opacity=".65"/>{{if $f.Limit}}<rect x="{{add $f.Limit -0.4}}" width=".8" height="18" fill="currentColor"/>{{end}}</svg>
<text x="512" y="17">{{$f.Value}}</text><text x="640" y="17">{{$f.Need}}</text></g>
{{end}}</svg>{{end}}
<p><code>{{range .Command}}{{.}} {{end}}</code></p>{{if .Line}}<p><code>{{.Line}}</code></p>{{end}}
{{end}}<p>Bars are drawn by the square root; the mark is the limit. The signed figures are in scorecard.json; <code>go run ./tests/scorecard -verify scorecard.json</code> checks them.</p>
</body></html>
`))
