package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/stat.
const tick = 10 * time.Millisecond

var cores = runtime.NumCPU()

// busy is how long the machine's cores have worked since it was started, for
// whomever. Where the system does not tell it is 0.
func busy() time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return busyIn(string(stat))
}

// busyIn reads the first line of a /proc/stat: cpu, and the ticks spent in user,
// nice, system, idle, iowait, irq, softirq and steal; what follows is in user
// already.
func busyIn(stat string) (d time.Duration) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, field := range strings.Fields(line) {
		if ticks, err := strconv.ParseInt(field, 10, 64); err == nil && i <= 8 && i != 4 && i != 5 {
			d += time.Duration(ticks) * tick
		}
	}
	return d
}

// Machine says what was measured, and on what.
type Machine struct {
	Commit string `json:"commit"` // "+" behind it: with changes that are not committed
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	System string `json:"system"`
	Go     string `json:"go"`
}

func thisMachine() Machine {
	m := Machine{
		Commit: commit(), CPU: "unknown", Cores: cores, Memory: field("/proc/meminfo", "MemTotal"), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
	}
	if cpu := field("/proc/cpuinfo", "model name"); cpu != "" {
		m.CPU = cpu
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += " " + strings.TrimSpace(string(release))
	}
	return m
}

func (m Machine) String() string {
	return fmt.Sprintf("commit %s; %d × %s, %s, %s, %s", m.Commit, m.Cores, m.CPU, m.Memory, m.System, m.Go)
}

// field is the value of the first line "name : value" of a file.
func field(file, name string) string {
	content, _ := os.ReadFile(file) // no other system has it
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	c := strings.TrimSpace(string(head))
	if changes, err := exec.Command("git", "status", "--porcelain").Output(); err != nil || len(changes) > 0 {
		c += "+"
	}
	return c
}
