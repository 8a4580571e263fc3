package dynamodb

import (
	"errors"
	"fmt"
	"time"

	"github.com/aws/smithy-go"
)

// Grade says how well something is.
type Grade string

const (
	Good    Grade = "ok"
	Warning Grade = "warning" // it works, and should be mended
	Bad     Grade = "failed"  // the table cannot be an arbiter like this
)

// Finding is what one call, or one property of the table, has shown.
type Finding struct {
	What   string // such as "GetItem", or "deletion protection"
	Grade  Grade
	Detail string // what was found and, unless it is good, what to do
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.What, f.Grade, f.Detail) }

func good(what, format string, args ...any) Finding {
	return Finding{what, Good, fmt.Sprintf(format, args...)}
}

func warning(what, format string, args ...any) Finding {
	return Finding{what, Warning, fmt.Sprintf(format, args...)}
}

func bad(what, format string, args ...any) Finding {
	return Finding{what, Bad, fmt.Sprintf(format, args...)}
}

// Report is what Check has found.
type Report struct {
	Table    string
	Findings []Finding
	// Reads is how many reads the round trips are of; 0: they failed.
	Reads            int
	Min, Median, Max time.Duration
}

// Grade is the worst one of the findings.
func (r Report) Grade() Grade {
	worst := Good
	for _, f := range r.Findings {
		if f.Grade == Bad || f.Grade == Warning && worst == Good {
			worst = f.Grade
		}
	}
	return worst
}

// Codes of errors that the SDK has no types for.
const (
	codeUnknownOperation = "UnknownOperationException" // how DynamoDB Local answers what it cannot
	codeAccessDenied     = "AccessDeniedException"
)

// coded reports whether err is an error of AWS with this code.
func coded(err error, code string) bool {
	named, ok := errors.AsType[smithy.APIError](err)
	return ok && named.ErrorCode() == code
}
