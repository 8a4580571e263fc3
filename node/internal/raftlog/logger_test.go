package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder returns a logger and what it has written so far, without times.
func recorder(level slog.Level) (hclog.Logger, func() string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return New(slog.New(h)), func() string { defer b.Reset(); return b.String() }
}

func TestMessages(t *testing.T) {
	tests := []struct {
		name string
		do   func(hclog.Logger)
		want string
	}{
		{"trace", func(l hclog.Logger) { l.Trace("m") }, "level=DEBUG-4 msg=m component=raft"},
		{"debug", func(l hclog.Logger) { l.Debug("m", "k", "v") }, "level=DEBUG msg=m component=raft k=v"},
		{"info", func(l hclog.Logger) { l.Info("m", "k", 1) }, "level=INFO msg=m component=raft k=1"},
		{"warn", func(l hclog.Logger) { l.Warn("m") }, "level=WARN msg=m component=raft"},
		{"error", func(l hclog.Logger) { l.Error("m", "error", errors.New("bad")) }, "level=ERROR msg=m component=raft error=bad"},
		{"no level", func(l hclog.Logger) { l.Log(hclog.NoLevel, "m") }, "level=INFO msg=m component=raft"},
		{"off", func(l hclog.Logger) { l.Log(hclog.Off, "m") }, ""},
		{"with", func(l hclog.Logger) { l.With("a", 1).With("b", 2).Info("m", "c", 3) }, "level=INFO msg=m component=raft a=1 b=2 c=3"},
		{"with, complaint", func(l hclog.Logger) { l.With("a", 1).Error("m") }, "level=ERROR msg=m component=raft a=1"},
		{"named", func(l hclog.Logger) { l.Named("snapshot").Warn("m") }, "level=WARN msg=m component=raft.snapshot"},
		{"renamed", func(l hclog.Logger) { l.ResetNamed("other").Named("x").Info("m") }, "level=INFO msg=m component=other.x"},
		{"odd", func(l hclog.Logger) { l.Info("m", "k", "v", "alone") }, "level=INFO msg=m component=raft k=v EXTRA_VALUE_AT_END=alone"},
		{"odd with", func(l hclog.Logger) { l.With("alone").Info("m", "k", "v") }, "level=INFO msg=m component=raft EXTRA_VALUE_AT_END=alone k=v"},
		{"key that is no string", func(l hclog.Logger) { l.Info("m", 7, "v") }, "level=INFO msg=m component=raft 7=v"},
		{"format", func(l hclog.Logger) { l.Info("m", "s", hclog.Fmt("%d of %d", 1, 3)) }, `level=INFO msg=m component=raft s="1 of 3"`},
		{"empty format", func(l hclog.Logger) { l.Info("m", "s", hclog.Format{}) }, `level=INFO msg=m component=raft s=""`},
		{"bases", func(l hclog.Logger) { l.Info("m", "h", hclog.Hex(255), "o", hclog.Octal(8), "b", hclog.Binary(5)) }, "level=INFO msg=m component=raft h=0xff o=010 b=0b101"},
		{"text", func(l hclog.Logger) { l.Info("m", "q", hclog.Quote("x"), "s", hclog.CapturedStacktrace("y")) }, "level=INFO msg=m component=raft q=x s=y"},
		{"standard", func(l hclog.Logger) { l.StandardLogger(nil).Printf("a line") }, `level=INFO msg="a line" component=raft`},
		{"standard, forced", func(l hclog.Logger) {
			fmt.Fprintln(l.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "x")
		}, "level=DEBUG msg=x component=raft"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, written := recorder(LevelTrace)
			tt.do(l)
			if got := strings.TrimSuffix(written(), "\n"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	for _, tt := range []struct {
		level                           slog.Level
		want                            hclog.Level
		trace, debug, info, warn, error bool
	}{
		{LevelTrace, hclog.Trace, true, true, true, true, true},
		{slog.LevelDebug, hclog.Debug, false, true, true, true, true},
		{slog.LevelInfo, hclog.Info, false, false, true, true, true},
		{slog.LevelWarn, hclog.Warn, false, false, false, true, true},
		{slog.LevelError, hclog.Error, false, false, false, false, true},
		{slog.LevelError + 1, hclog.Off, false, false, false, false, false},
	} {
		l, written := recorder(tt.level)
		l.SetLevel(hclog.Trace) // changes nothing
		got := []bool{l.IsTrace(), l.IsDebug(), l.IsInfo(), l.IsWarn(), l.IsError()}
		want := []bool{tt.trace, tt.debug, tt.info, tt.warn, tt.error}
		if l.GetLevel() != tt.want || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("slog level %v: got %v %v, want %v %v", tt.level, l.GetLevel(), got, tt.want, want)
		}
		for level := hclog.Trace; level <= hclog.Error; level++ {
			l.Log(level, level.String())
			if wrote := written() != ""; wrote != (level >= tt.want) {
				t.Errorf("slog level %v: message of level %v written: %v", tt.level, level, wrote)
			}
		}
	}
}

func TestWithDoesNotChangeItsParent(t *testing.T) {
	l, written := recorder(slog.LevelInfo)
	args := []any{"a", 1}
	child := l.With(args...)
	args[1] = 2
	child.With("b", 2)
	child.ImpliedArgs()[0] = "z"
	child.Info("child")
	l.Info("parent")
	want := "level=INFO msg=child component=raft a=1\nlevel=INFO msg=parent component=raft\n"
	if got := written(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := child.Named("x").Name(); got != "raft.x" {
		t.Errorf("name: got %q, want raft.x", got)
	}
}

func TestComplaintsAreBounded(t *testing.T) {
	l, _ := recorder(slog.LevelInfo)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for k := range maxComplaints {
				l.Error("m", "peer", 2*k+i)
			}
		})
	}
	wg.Wait()
	if n := len(l.(*logger).last); n > maxComplaints {
		t.Errorf("%d complaints are remembered, want at most %d", n, maxComplaints)
	}
}
