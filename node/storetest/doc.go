// Package storetest has the tests of whole nodes with a real arbiter: they need
// DynamoDB Local, and belong to make test-stores.
package storetest
