package dynamodb

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coordd/coordd/internal/dynamolocal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(dynamolocal.Main(m)) }
