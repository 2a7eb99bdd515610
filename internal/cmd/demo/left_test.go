package main

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
)

// Given a process that was started with our folder in its environment, and one it has started in turn, then both are
// found, and when they have ended nothing is.
func TestProcessesOfTheDemoAreFound(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", "cat; echo never")
	cmd.Env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("both run\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	left, err := processesOf(dir)
	if err != nil || len(left) != 2 || !strings.Contains(strings.Join(left, " "), `"cat"`) {
		t.Errorf("found %q (%v), want the shell and its cat", left, err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its echo has nobody to read it
	if left, err := processesOf(dir); err != nil || len(left) != 0 {
		t.Errorf("found %q (%v) after their end", left, err)
	}
}
