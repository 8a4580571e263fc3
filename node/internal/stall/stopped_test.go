package stall

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

const (
	writerEnv    = "COORDD_TEST_STALL_WRITER"
	stoppedLimit = 800 * time.Millisecond
)

// TestStoppedProcess: a process that was stopped for longer than the limit, in
// the middle of a write, goes on: its disk has done nothing wrong.
func TestStoppedProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestWriter$")
	cmd.Env = append(os.Environ(), writerEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil || line != "writing\n" {
		t.Fatalf("the writer said %q: %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(stoppedLimit * 3 / 2) // real time has to pass
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	if line, err := lines.ReadString('\n'); err != nil || line != "fine\n" {
		t.Errorf("the writer said %q: %v, want fine", line, err)
	}
}

// slow takes its time for each write.
type slow struct{ *raft.InmemStore }

func (s slow) StoreLogs(logs []*raft.Log) error {
	time.Sleep(20 * time.Millisecond)
	return s.InmemStore.StoreLogs(logs)
}

// TestWriter is the process of TestStoppedProcess: it writes without a break.
func TestWriter(t *testing.T) {
	if os.Getenv(writerEnv) == "" {
		t.Skip("runs in a process of its own")
	}
	store := slow{raft.NewInmemStore()}
	guard := New(store, store, stoppedLimit, func(error) {})
	defer guard.Close()
	input := make(chan struct{})
	go func() {
		defer close(input)
		io.Copy(io.Discard, os.Stdin)
	}()
	for i := uint64(1); ; i++ {
		if err := guard.Logs().StoreLog(&raft.Log{Index: i}); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
			return
		}
		if i == 1 {
			fmt.Println("writing")
		}
		select {
		case <-input:
			fmt.Println("fine")
			return
		default:
		}
	}
}
