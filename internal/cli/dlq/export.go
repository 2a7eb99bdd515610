package dlq

import (
	"bufio"
	"context"
	"errors"
	"os"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/screen"
)

var exportCommand = command.Command{
	Use:   "export",
	Short: "Write dead letters to a file, a JSON object per line",
	Long: `Write dead letters as the consumer log knows them, the latest first, one JSON object per line: tag, key,
reason, properties, headers, and the body in base64. All are written unless conditions choose. The queue is not touched,
and the letters stay.

'PROGRAM dlq replay --from FILE' replays the lines, also with a body that was mended. Change its text: jq 1.6
rounds a sku_id beyond 2^53 when it reads the body as JSON. 'PROGRAM publish --letters FILE' puts them on the
main queue as they are, like a letter moved by hand.`,
	Example: `  PROGRAM dlq export --reason malformed -o letters.ndjson
  jq -c '.body |= (@base64d | sub("\"quantity\": *[0-9]+"; "\"quantity\":2") | @base64)' letters.ndjson > mended.ndjson
  PROGRAM dlq replay --from mended.ndjson`,
	Needs: command.NeedsLog,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		filter := readFilter(f)
		f.Limit(&filter.Limit, 0, "write at most so many; 0: all")
		path := f.StringP("output", "o", "-", "the FILE, which must not exist; - is the standard output")
		return func(ctx context.Context, c *command.Call) (err error) {
			to := c.Stdout
			if *path != "-" {
				file, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // bodies are nobody else's business
				if err != nil {
					return command.Usagef("the export: %w", err)
				}
				to = file
				defer func() {
					err = errors.Join(err, file.Close())
				}()
			}
			buffered := bufio.NewWriterSize(to, 64<<10)
			n, err := c.Letters.Export(ctx, *filter, command.Escaping{Writer: buffered})
			err = errors.Join(c.Hinted(err), buffered.Flush())
			if n == 0 && err == nil {
				c.SayUnknownGroup(ctx)
			}
			c.Say("exported %s", screen.Plural(n, "letter"))
			return err
		}
	},
}
