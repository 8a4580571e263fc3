// Package raftlog lets Raft write its log to a slog.Logger.
package raftlog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// LevelTrace is the slog level of Raft's finest messages.
const LevelTrace = slog.LevelDebug - 4

// New returns a logger that passes everything on to to, with the attribute
// component=raft, but a warning or error about the same peer at most once in ten
// seconds. What is written is decided by to's handler; SetLevel does
// nothing.
func New(to *slog.Logger) hclog.Logger { return &logger{to: to, name: "raft", sparse: &sparse{}} }

// logger is immutable but for sparse, so that Raft's goroutines can share it.
type logger struct {
	*sparse
	to   *slog.Logger
	name string // the component; Named appends to it
	args []any  // of With, in hclog's form
}

func (l *logger) Log(level hclog.Level, msg string, args ...any) {
	at, ok := slogLevel(level)
	ctx := context.Background()
	if !ok || !l.to.Enabled(ctx, at) {
		return
	}
	pass, leftOut := l.pass(at, msg, args)
	if !pass {
		return
	}
	attrs := append(make([]slog.Attr, 0, 2+(len(l.args)+len(args)+1)/2), slog.String("component", l.name))
	attrs = appendAttrs(attrs, l.args)
	attrs = appendAttrs(attrs, args)
	if leftOut > 0 {
		attrs = append(attrs, slog.Int("left out", leftOut))
	}
	l.to.LogAttrs(ctx, at, msg, attrs...)
}

func (l *logger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *logger) IsTrace() bool { return l.enabled(hclog.Trace) }
func (l *logger) IsDebug() bool { return l.enabled(hclog.Debug) }
func (l *logger) IsInfo() bool  { return l.enabled(hclog.Info) }
func (l *logger) IsWarn() bool  { return l.enabled(hclog.Warn) }
func (l *logger) IsError() bool { return l.enabled(hclog.Error) }

func (l *logger) enabled(level hclog.Level) bool {
	at, ok := slogLevel(level)
	return ok && l.to.Enabled(context.Background(), at)
}

func (l *logger) ImpliedArgs() []any { return slices.Clone(l.args) }

func (l *logger) With(args ...any) hclog.Logger {
	return &logger{sparse: l.sparse, to: l.to, name: l.name, args: slices.Concat(l.args, pairs(args))}
}

func (l *logger) Name() string { return l.name }

func (l *logger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *logger) ResetNamed(name string) hclog.Logger {
	return &logger{sparse: l.sparse, to: l.to, name: name, args: l.args}
}

func (l *logger) SetLevel(hclog.Level) {}

func (l *logger) GetLevel() hclog.Level {
	for level := hclog.Trace; level <= hclog.Error; level++ {
		if l.enabled(level) {
			return level
		}
	}
	return hclog.Off
}

func (l *logger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(opts), "", 0)
}

func (l *logger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	level := hclog.Info
	if opts != nil && opts.ForceLevel != hclog.NoLevel {
		level = opts.ForceLevel
	}
	return lines{l, level}
}

// lines logs each write as one message; log.Logger writes whole lines.
type lines struct {
	to    *logger
	level hclog.Level
}

func (w lines) Write(b []byte) (int, error) {
	w.to.Log(w.level, string(bytes.TrimRight(b, " \t\r\n")))
	return len(b), nil
}

func slogLevel(level hclog.Level) (slog.Level, bool) {
	switch level {
	case hclog.Trace:
		return LevelTrace, true
	case hclog.Debug:
		return slog.LevelDebug, true
	case hclog.Info, hclog.NoLevel:
		return slog.LevelInfo, true
	case hclog.Warn:
		return slog.LevelWarn, true
	case hclog.Error:
		return slog.LevelError, true
	default:
		return 0, false
	}
}

// pairs gives a last value without a key the key that hclog gives it.
func pairs(args []any) []any {
	if len(args)%2 == 0 {
		return args
	}
	return append(slices.Clone(args[:len(args)-1]), hclog.MissingKey, args[len(args)-1])
}

func appendAttrs(attrs []slog.Attr, args []any) []slog.Attr {
	args = pairs(args)
	for i := 0; i < len(args); i += 2 {
		attrs = append(attrs, slog.Any(text(args[i]), value(args[i+1])))
	}
	return attrs
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return fmt.Sprint(v)
}

// value resolves hclog's own ways to say how a value is to be shown.
func value(v any) any {
	switch v := v.(type) {
	case hclog.Format:
		if format, ok := first(v); ok {
			return fmt.Sprintf(format, v[1:]...)
		}
		return fmt.Sprint(v...)
	case hclog.Hex:
		return fmt.Sprintf("0x%x", int(v))
	case hclog.Octal:
		return fmt.Sprintf("0%o", int(v))
	case hclog.Binary:
		return fmt.Sprintf("0b%b", int(v))
	case hclog.CapturedStacktrace:
		return string(v)
	case hclog.Quote:
		return string(v)
	}
	return v
}

func first(f hclog.Format) (string, bool) {
	if len(f) == 0 {
		return "", false
	}
	s, ok := f[0].(string)
	return s, ok
}
