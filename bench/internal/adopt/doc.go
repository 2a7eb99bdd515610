// Package adopt tests, with the real libraries of others, that a shop which uses them comes to rollbackd and goes back
// as docs/adopting.md says. It stands in this module because the product links none of them.
package adopt
