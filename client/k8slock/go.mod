module github.com/coordd/coordd/client/k8slock

go 1.26.0

require github.com/coordd/coordd v0.0.0-00010101000000-000000000000

require k8s.io/client-go v0.37.2 // indirect

replace github.com/coordd/coordd => ../..
