package site_test

import (
	"encoding/json"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// repository is where links lead that lead to no page.
const repository = "https://github.com/rollbackd/rollbackd/blob/main/"

var (
	target = regexp.MustCompile(`\b(href|src)="?([^"\s>]+)`)
	name   = regexp.MustCompile(`\bid="?([^"\s>]+)`)
)

// Given the site that `make site` made, then each link leads to a page, an anchor of it or a file of the repository;
// nothing is loaded from elsewhere; the search knows every page; and the API's page has every request of openapi.json.
func TestTheSiteIsWholeAndEachLinkLeadsSomewhere(t *testing.T) {
	dir := os.Getenv("ROLLBACKD_TEST_SITE")
	if dir == "" {
		t.Skip("'make site' makes the site, and looks at it")
	}
	pages, anchors := map[string]string{}, map[string]bool{} // by path, and path#id
	site := os.DirFS(dir)
	require.OK(t, fs.WalkDir(site, ".", func(file string, _ fs.DirEntry, err error) error {
		if err == nil && path.Ext(file) == ".html" {
			pages[file] = string(require.Get(fs.ReadFile(site, file))(t))
			for _, m := range name.FindAllStringSubmatch(pages[file], -1) {
				anchors[file+"#"+html.UnescapeString(m[1])] = true
			}
		}
		return err
	}))
	links := 0
	for file, page := range pages {
		for _, m := range target.FindAllStringSubmatch(page, -1) {
			links++
			to := require.Get(url.Parse(html.UnescapeString(m[2])))(t)
			loaded := m[1] == "src" || strings.HasSuffix(to.Path, ".css")
			inside, ofRepository := strings.CutPrefix(to.String(), repository)
			at := path.Join(path.Dir(file), to.Path)
			switch {
			case ofRepository:
				if _, err := os.Stat(filepath.Join("..", "..", inside)); err != nil {
					t.Errorf("%s links %s, which the repository does not have", file, inside)
				}
			case to.IsAbs() && loaded:
				t.Errorf("%s loads %s from elsewhere", file, to)
			case to.IsAbs():
			case to.Path == "":
				at = file
				fallthrough
			default:
				if _, err := fs.Stat(site, at); err != nil {
					t.Errorf("%s links %s, which is not there", file, to)
				} else if to.Fragment != "" && !anchors[at+"#"+to.Fragment] {
					t.Errorf("%s links %s, and %s has no such heading", file, to, at)
				}
			}
		}
	}
	assert.That(t, len(pages) >= 40 && links >= 1000, "only %d pages with %d links are there", len(pages), links)
	var index struct {
		Languages map[string]struct {
			Pages int `json:"page_count"`
		}
	}
	require.OK(t, json.Unmarshal(require.Get(fs.ReadFile(site, "pagefind/pagefind-entry.json"))(t), &index))
	if want := len(pages) - 1; index.Languages["en"].Pages != want { // index.html is README.html once more
		t.Errorf("the search knows %d pages, want %d", index.Languages["en"].Pages, want)
	}
	var api struct {
		Paths map[string]map[string]struct {
			OperationID string
		}
	}
	require.OK(t, json.Unmarshal(docs.OpenAPI, &api))
	for _, methods := range api.Paths {
		for _, do := range methods {
			assert.That(t, anchors["docs/openapi.html#"+do.OperationID], "the API's page does not have %s", do.OperationID)
		}
	}
	for file, has := range map[string]string{
		"docs/life.html": "<svg", "ARCHITECTURE.html": "<svg", "docs/settings.html": "<code>ROLLBACKD_MYSQL_DSN</code>",
	} {
		assert.That(t, strings.Contains(pages[file], has), "%s has no %s", file, has)
	}
}
