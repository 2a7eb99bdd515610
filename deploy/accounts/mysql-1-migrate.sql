-- Load it before `rollbackd migrate`: the schema, and the account that makes the tables.
CREATE DATABASE IF NOT EXISTS `shop`;
CREATE USER IF NOT EXISTS 'rollbackd_migrate'@'%' IDENTIFIED BY 'MIGRATE_PASSWORD';
GRANT SELECT, INSERT, CREATE, ALTER, INDEX, CREATE VIEW, DROP ON `shop`.* TO 'rollbackd_migrate'@'%';
