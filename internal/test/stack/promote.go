package stack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What is behind source and replicas is what a person does, or a program in place of one: fence the source, let the
// replica that has received most apply it, make it the source, and give the old source no client before it holds what
// the new one does.

// Promote makes the replica that has received most the source. The old source must be fenced: it does not run, or is
// read-only for good. The others follow the new one.
//
// All other nodes must answer: what was acknowledged may have been received by one semi-synchronous replica alone.
func (s *Stack) Promote(ctx context.Context, old int) (at int, err error) {
	r := s.replicated
	for i := range s.Databases {
		if i == old {
			continue
		}
		if err := r.on(ctx, i, "STOP REPLICA IO_THREAD"); err != nil {
			return -1, err
		}
	}
	at, received, err := s.most(ctx, old)
	if err != nil {
		return -1, err
	}
	if err := r.on(ctx, at, "START REPLICA SQL_THREAD"); err != nil { // it runs, or somebody had stopped it
		return -1, err
	}
	if err := r.caughtUp(ctx, at, received); err != nil {
		return -1, err
	}
	if err := r.on(ctx, at, "STOP REPLICA", "RESET REPLICA ALL"); err != nil {
		return -1, err
	}
	for i := range s.Databases {
		if i == old || i == at {
			continue
		}
		if err := s.Follow(ctx, i, at); err != nil {
			return -1, err
		}
	}
	return at, r.open(ctx, at)
}

// holds is what a replica has received or made.
func (s *Stack) holds(ctx context.Context, i int) (gtids string, err error) {
	err = s.replicated.value(ctx, i, &gtids, "SELECT CONCAT(@@GLOBAL.gtid_executed, ',', COALESCE((SELECT "+
		"GROUP_CONCAT(RECEIVED_TRANSACTION_SET) FROM performance_schema.replication_connection_status), ''))")
	return gtids, err
}

// caughtUp waits until a node has applied a set of transactions.
func (r *replicated) caughtUp(ctx context.Context, i int, gtids string) error {
	var late sql.NullBool
	if err := r.value(ctx, i, &late, "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, 60)", gtids); err != nil {
		return err
	}
	if late.Bool {
		var has, said string
		err := errors.Join(r.value(ctx, i, &has, "SELECT @@GLOBAL.gtid_executed"), r.value(ctx, i, &said, "SELECT "+
			"COALESCE(GROUP_CONCAT(SERVICE_STATE, LAST_ERROR_MESSAGE), '') "+
			"FROM performance_schema.replication_applier_status_by_worker"))
		return errors.Join(fmt.Errorf("%s has not applied %s within a minute, but %s; its workers say %q", nodeName(i),
			gtids, has, said), err)
	}
	return nil
}

// Level waits until all others hold what one node does.
func (s *Stack) Level(ctx context.Context, source int) error {
	var all string
	if err := s.replicated.value(ctx, source, &all, "SELECT @@GLOBAL.gtid_executed"); err != nil {
		return err
	}
	for i := range s.Databases {
		if i == source {
			continue
		}
		if err := s.replicated.caughtUp(ctx, i, all); err != nil {
			return err
		}
	}
	return nil
}

// SwitchOver makes another node the source while the old one is well, and the old one its replica: nothing is lost.
// The source must be read-only already, and no transaction in it.
func (s *Stack) SwitchOver(ctx context.Context, old int) (at int, err error) {
	if err := s.Level(ctx, old); err != nil {
		return -1, err
	}
	if at, err = s.Promote(ctx, old); err != nil {
		return at, err
	}
	return at, s.Follow(ctx, old, at)
}

// Reopen gives a source that comes back its clients again, when its replicas hold all that it has: what it had written
// and no replica had received is committed there by its start.
func (s *Stack) Reopen(ctx context.Context, source int) error {
	if err := s.Level(ctx, source); err != nil {
		return err
	}
	return s.replicated.open(ctx, source)
}

// Rebuild makes a node that runs the replica of another one, with a copy of the other one's data in place of its own.
// It returns the transactions that only the node had, as a set of their GTIDs: nobody has promised that they last.
func (s *Stack) Rebuild(ctx context.Context, node, source int) (stray string, err error) {
	r := s.replicated
	var theirs string
	if err := r.value(ctx, source, &theirs, "SELECT @@GLOBAL.gtid_executed"); err != nil {
		return "", err
	}
	if err := r.value(ctx, node, &stray, "SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, ?)", theirs); err != nil {
		return "", err
	}
	server := s.Databases[node]
	ended := server.main.ended()
	donor := r.network.peer(source) + ":" + replicatedPort
	err = r.on(ctx, node, "SET GLOBAL super_read_only = OFF", "SET GLOBAL clone_valid_donor_list = '"+donor+"'",
		fmt.Sprintf("CLONE INSTANCE FROM '%s'@'%s':%s IDENTIFIED BY '%s'", replicationUser, r.network.peer(source),
			replicatedPort, r.password))
	// The node is to be started again by whoever looks after it; it says that as an error, or hangs up.
	select {
	case <-ended:
	case <-ctx.Done():
		return stray, fmt.Errorf("rebuild %s: %w", nodeName(node), errors.Join(err, context.Cause(ctx)))
	}
	if err := server.start(ctx); err != nil {
		return stray, fmt.Errorf("start %s with its new data: %w", nodeName(node), err)
	}
	return stray, s.Follow(ctx, node, source)
}

// Index says which node of [Stack.Databases] that is, -1 for none.
func (s *Stack) Index(node *Server) int { return slices.Index(s.Databases, node) }

// HasMost says which node has received or committed most.
func (s *Stack) HasMost(ctx context.Context) (at int, err error) {
	at, _, err = s.most(ctx, -1)
	return at, err
}

// most finds the node that has received or committed most, and what that is; except is a node not to ask.
func (s *Stack) most(ctx context.Context, except int) (at int, gtids string, err error) {
	at = -1
	for i := range s.Databases {
		if i == except {
			continue
		}
		all, err := s.holds(ctx, i)
		if err != nil {
			return -1, "", err
		}
		more := at < 0
		if !more {
			if err := s.replicated.value(ctx, i, &more, "SELECT NOT GTID_SUBSET(?, ?)", all, gtids); err != nil {
				return -1, "", err
			}
		}
		if more {
			gtids, at = all, i
		}
	}
	if at < 0 {
		return -1, "", errors.New("find the node that has most: there is none")
	}
	return at, gtids, nil
}

// Follows says whether a node is a replica of another one.
func (s *Stack) Follows(ctx context.Context, i int) (yes bool, err error) {
	err = s.replicated.value(ctx, i, &yes, "SELECT EXISTS (SELECT * FROM performance_schema."+
		"replication_connection_configuration WHERE CHANNEL_NAME = '')")
	return yes, err
}

// LeaveOut tells a replica which tables to leave out from now on; none: it applies all.
func (s *Stack) LeaveOut(ctx context.Context, replica int, tables ...string) error {
	return s.replicated.on(ctx, replica, "STOP REPLICA SQL_THREAD", fmt.Sprintf("CHANGE REPLICATION FILTER "+
		"REPLICATE_IGNORE_TABLE = (%s)", strings.Join(tables, ", ")), "START REPLICA SQL_THREAD")
}
