package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
)

// result is one line of results.json.
type result struct {
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Reference *float64 `json:"reference"` // the reference driver's value; null if there is none
	Target    *float64 `json:"target"`    // upper limit of the value; null if there is none
	Holds     bool     `json:"holds"`     // false only if a target is missed
}

type results []result

// add appends a value. NaN as the reference or the target means none.
func (r *results) add(name string, value float64, unit string, reference, target float64) {
	value = round(value)
	known := func(x float64) *float64 {
		if math.IsNaN(x) {
			return nil
		}
		x = round(x)
		return &x
	}
	limit := known(target)
	*r = append(*r, result{name, value, unit, known(reference), limit, limit == nil || value <= *limit})
}

var none = math.NaN()

// print prints the table.
func (r results) print() {
	if len(r) == 0 {
		return
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nMEASURED\tDRA-OPERATOR\tREFERENCE\tTARGET\tHOLDS")
	for _, line := range r {
		target, holds := "–", "–"
		if line.Target != nil {
			target, holds = "≤ "+number(line.Target), map[bool]string{true: "yes", false: "NO"}[line.Holds]
		}
		fmt.Fprintf(table, "%s\t%s %s\t%s\t%s\t%s\n", line.Name, number(&line.Value), line.Unit, number(line.Reference), target, holds)
	}
	table.Flush()
}

// write writes the list as JSON.
func (r results) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func (r results) missed() (count int) {
	for _, line := range r {
		if !line.Holds {
			count++
		}
	}
	return count
}

// addSizes compares the binaries; MB is 10⁶ bytes, here and for memory.
func (r *results) addSizes(ours, reference string) error {
	var sizes []float64
	for _, file := range []string{ours, reference} {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		sizes = append(sizes, float64(info.Size())/1e6)
	}
	r.add("binary size", sizes[0], "MB", sizes[1], 20)
	return nil
}

func number(x *float64) string {
	if x == nil {
		return "–"
	}
	return strconv.FormatFloat(*x, 'f', -1, 64)
}

// round keeps three decimals.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// quantile of values, by the nearest rank.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}
