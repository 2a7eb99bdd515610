// Package ground is what every contestant runs on: private servers, a schema, a queue with a backlog, and the check
// that nothing was lost or done twice. All contestants get the same servers, the same tables, the same queue and the
// same messages; what they do with them is not known here.
package ground
