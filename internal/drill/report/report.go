// Package report writes what came of drills as one HTML file for people, with a
// timeline of each round. The file needs nothing else: no script, no font, no picture
// from elsewhere.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/coordd/coordd/internal/drill"
)

//go:embed report.html
var source string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"seconds": seconds,
	"class":   class,
	"chart":   newChart,
	"inc":     func(i int) int { return i + 1 },
}).Parse(source))

// Head is what a report says of itself.
type Head struct {
	Release string    // of coordd
	Made    time.Time // when the drills began
	Where   string    // which arbiter they had
}

// Write writes a report about drills, in their order.
func Write(w io.Writer, head Head, drills []drill.Summary) error {
	bad := 0
	for _, d := range drills {
		if d.Bad() {
			bad++
		}
	}
	err := page.Execute(w, struct {
		Head
		Drills []drill.Summary
		Bad    int
	}{head, drills, bad})
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// seconds is how times are told.
func seconds(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}

// class is an outcome's in the style sheet.
func class(o drill.Outcome) string {
	switch o {
	case drill.Kept:
		return "kept"
	case drill.Broken:
		return "broken"
	default:
		return "open"
	}
}
