package gateway

// What the tests look into.
var (
	Statuses = statuses
	OpenAPI  = openAPI
)

const (
	MaxBody     = maxBody
	MaxHeader   = maxHeader
	ReadTime    = readTime
	WriteTime   = writeTime
	PartingTime = partingTime
)
