// Package arch holds the tests that keep the module's structure: which package
// may import which, what the deterministic parts may not do, and what tests and
// files may not contain. docs/architecture.md says why.
package arch
