// Package config turns the environment into one checked Config, or says everything that is wrong with it at once.
//
// A Config that Load returned without an error is complete and consistent: every default is filled in, every value is
// in its range, and the values fit together (a lease outlives the handler's timeout, there are enough retry delays for
// MAX_ATTEMPTS). No other package reads ROLLBACKD_ variables, fills in defaults or knows the variables' names.
//
// What belongs here: the variables, their defaults and ranges, the masking of secrets, the table for the documentation.
// What does not: connecting to anything, and the configuration types of the packages that
// obey the settings; those packages are asked only whether a URL or a name is good.
package config
