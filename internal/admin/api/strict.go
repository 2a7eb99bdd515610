package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	neturl "net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// Nothing that a request says may be dropped: a filter that is lost makes an act take more than was meant.
// encoding/json takes the last of two properties, and one of another case for the one that is meant; the library takes
// the first of two parameters, and no body where it expects none.

func init() { huma.ValidateStrictCasing = true } // the library has it for the process only

// strict reads JSON in which each property stands once.
var strict = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(data []byte, v any) error {
		if err := strictjson.CheckWithin(data, maxBody); err != nil {
			return err
		}
		return json.Unmarshal(data, v)
	},
}

// unambiguous refuses parameters that are there twice, unless they may be, and a body where none is expected.
func (a *API) unambiguous(ctx huma.Context, next func(huma.Context)) {
	const twice = "it is there twice"
	op, url := ctx.Operation(), ctx.URL()
	var wrongs []error
	asked, err := neturl.ParseQuery(url.RawQuery)
	if err != nil { // what cannot be read is left out
		wrongs = append(wrongs, &huma.ErrorDetail{Location: "query", Message: "it is not encoded as a query must be"})
	}
	for name, values := range asked {
		if len(values) > 1 && !slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool {
			return p.In == "query" && p.Name == name && p.Schema.Type == huma.TypeArray
		}) {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "query." + name, Message: twice})
		}
	}
	headers := map[string]int{}
	ctx.EachHeader(func(name, _ string) { headers[http.CanonicalHeaderKey(name)]++ })
	for _, p := range op.Parameters {
		if p.In == "header" && headers[http.CanonicalHeaderKey(p.Name)] > 1 {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "header." + p.Name, Message: twice})
		}
	}
	if op.RequestBody == nil {
		body, err := io.ReadAll(io.LimitReader(ctx.BodyReader(), 16))
		if text := string(bytes.TrimSpace(body)); err != nil || text != "" && text != "{}" {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "body", Message: "nothing is asked for here"})
		}
	}
	if len(wrongs) > 0 {
		slices.SortFunc(wrongs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		_ = huma.WriteErr(a.huma, ctx, http.StatusUnprocessableEntity, invalid, wrongs...) // into memory
		return
	}
	next(ctx)
}
