package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func newDLQExportCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write dead letters to a file, a JSON object per line",
		Long: `Write dead letters as the consumer log knows them, the latest first, one JSON object per line: tag, key,
reason, properties, headers, and the body in base64. All are written unless conditions choose. The queue is not touched,
and the letters stay.

'` + a.name + ` dlq replay --from FILE' replays the lines, also with a body that was mended. Change its text: jq 1.6
rounds a sku_id beyond 2^53 when it reads the body as JSON. '` + a.name + ` publish --letters FILE' puts them on the
main queue as they are, like a letter moved by hand.`,
		Example: "  " + a.name + ` dlq export --reason malformed -o letters.ndjson
  jq -c '.body |= (@base64d | sub("\"quantity\": *[0-9]+"; "\"quantity\":2") | @base64)' letters.ndjson > mended.ndjson
  ` + a.name + ` dlq replay --from mended.ndjson`,
		Args: cobra.NoArgs,
	}
	filter := addFilterFlags(cmd)
	limit := cmd.Flags().Int("limit", 0, "write at most so many; 0: all")
	path := cmd.Flags().StringP("output", "o", "-", "the FILE, which must not exist; - is the standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		f, err := filter.list(time.Now(), *limit)
		if err != nil {
			return err
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		letters, closeAll, err := a.openLetters(cmd.Context(), cfg, "dlq")
		if err != nil {
			return err
		}
		defer closeAll()
		var to io.Writer = a.stdout
		if *path != "-" {
			file, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // bodies are nobody else's business
			if err != nil {
				return usageErrorf("the export: %w", err)
			}
			to = file
			defer func() {
				err = errors.Join(err, file.Close())
			}()
		}
		buffered := bufio.NewWriterSize(to, 64<<10)
		n, err := letters.Export(cmd.Context(), f, escaping{buffered})
		err = errors.Join(a.mysqlError(cfg, err), buffered.Flush())
		what := "letters"
		if n == 0 && err == nil {
			a.sayUnknownGroup(cmd.Context(), letters.Records(), cfg.Group)
		}
		if n == 1 {
			what = "letter"
		}
		fmt.Fprintf(a.stderr, "%s: exported %d %s\n", a.name, n, what)
		return err
	}
	return cmd
}
