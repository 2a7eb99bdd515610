// Package rival is what rollbackd is measured beside: consuming without any work, the classic algorithm with one
// transaction per message, and Watermill with a deduplication row in the effect's transaction. Each does the same work
// per message on the same queue and the same tables, with the settings that serve it best, and runs in a process of its
// own as the product does. Nothing here may be slower than it has to be: a rival that was held back proves nothing.
package rival
