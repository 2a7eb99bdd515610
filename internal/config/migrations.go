package config

import (
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/stock"
)

// Migrations are the tables that this configuration needs: those of the consumer log, and of the built-in handler.
func (c Config) Migrations() dedup.MigrateOptions {
	o := dedup.MigrateOptions{Table: c.LogTable}
	if c.Handler == HandlerStock {
		o.Extra = []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}}
	}
	return o
}
