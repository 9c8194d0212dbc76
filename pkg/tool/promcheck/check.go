package promcheck

import (
	"fmt"
	"path"
	"slices"
)

// File is a dashboard (.json) or a rules file (.yml, .yaml).
type File struct {
	Name string
	Data []byte
}

// Options are the options of a check.
type Options struct {
	// Metrics contains all metrics that exist.
	Metrics Catalogue
	// Served contains the metrics that have series now. Result.Silent then lists the used metrics
	// without series. nil: this is not checked.
	Served Catalogue
	// Values contains the possible values of labels. The key is "METRIC LABEL"; for a histogram,
	// METRIC is its base name. A label without an entry may have any value. May be nil.
	Values map[string][]string
}

// Result is the result of a check.
type Result struct {
	Problems []Problem `json:"problems"`
	Silent   []string  `json:"silent"`  // used metrics that have no series yet
	Queries  int       `json:"queries"` // number of checked queries
}

// Check checks all files together, because a dashboard may use metrics that the rules in another
// file record. Problems are in the order of the files.
func Check(files []File, o Options) Result {
	c := &checker{o: o, uids: map[string]string{}, recorded: map[string]set{}, silent: map[string]bool{}}
	c.result.Problems, c.result.Silent = []Problem{}, []string{}
	rules := map[string]*Rules{}
	for _, f := range files {
		if isRules(f.Name) {
			r, err := ReadRules(f.Data)
			if err != nil {
				c.complainAt(f.Name, "")("it is not a valid rules file: %v", err)
				continue
			}
			rules[f.Name] = r
		}
	}
	for range 2 { // twice, because a rule may use a metric that a later file records
		for _, f := range files {
			if r := rules[f.Name]; r != nil {
				c.learnRecorded(r)
			}
		}
	}
	c.result.Queries = 0
	clear(c.silent)
	for _, f := range files {
		switch r := rules[f.Name]; {
		case r != nil:
			c.checkRules(f.Name, r)
		case path.Ext(f.Name) == ".json":
			c.checkDashboard(f.Name, f.Data)
		case !isRules(f.Name):
			c.complainAt(f.Name, "")("it is neither a dashboard (.json) nor a rules file (.yml)")
		}
	}
	for name := range c.silent {
		c.result.Silent = append(c.result.Silent, name)
	}
	slices.Sort(c.result.Silent)
	return c.result
}

func isRules(name string) bool { return path.Ext(name) == ".yml" || path.Ext(name) == ".yaml" }

type checker struct {
	o        Options
	uids     map[string]string // by uid: the file of the dashboard
	recorded map[string]set
	silent   map[string]bool
	result   Result
}

// complainAt returns a function that records a problem at a place in a file.
func (c *checker) complainAt(file, where string) func(format string, args ...any) {
	return func(format string, args ...any) {
		c.result.Problems = append(c.result.Problems, Problem{file, where, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) query(complain func(string, ...any)) *query {
	c.result.Queries++
	q := &query{metrics: c.o.Metrics, values: c.o.Values, recorded: c.recorded, complain: complain}
	if c.o.Served != nil {
		q.missing = func(m Metric) {
			if _, ok := c.o.Served[m.Name]; !ok {
				c.silent[m.Name] = true
			}
		}
	}
	return q
}
