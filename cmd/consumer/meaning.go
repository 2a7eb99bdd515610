package main

import (
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/story"
)

// namesOf are what words about a row need besides it.
func namesOf(cfg config.Config, program string) story.Names {
	return story.Names{Queue: cfg.Queue, MaxAttempts: cfg.MaxAttempts, Program: program}
}

func meaning(row dedup.Row, cfg config.Config, program string) (means, next string) {
	return story.Meaning(row, namesOf(cfg, program))
}
