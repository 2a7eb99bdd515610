-- the fewest columns
CREATE TABLE o (GROUP_NAME VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, PRIMARY KEY (msg_key, msg_tag, group_name)) CHARSET=utf8mb4;
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1);
-- latin1
CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, msg_body VARCHAR(200), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=latin1;
INSERT INTO o VALUES ('stock-rollback', 't', 'café?', 1, '{"name":"café"}');
-- latin1 with a lost character
CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, msg_body VARCHAR(200), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=latin1;
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{"name":"?"}');
-- a body that may be cut
CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, msg_body VARCHAR(8), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=utf8mb4;
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{"order_');
-- bytes
CREATE TABLE o (group_name VARBINARY(90), msg_tag VARBINARY(90), msg_key VARBINARY(90), consumer_status TINYINT, msg_body BLOB, PRIMARY KEY (group_name, msg_tag, msg_key));
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{"name":"café"}');
-- bytes, of which some are none
CREATE TABLE o (group_name VARBINARY(90), msg_tag VARBINARY(90), msg_key VARBINARY(90), consumer_status TINYINT, PRIMARY KEY (group_name, msg_tag, msg_key));
INSERT INTO o VALUES ('stock-rollback', '', 'k', 1), ('stock-rollback', 't', 'k', 1), ('stock-rollback', 't', 'l', 1);
-- a text as the time, in the primary key
CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, consumer_timestamp VARCHAR(30), PRIMARY KEY (msg_key, consumer_timestamp)) CHARSET=utf8mb4;
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '2026-11-01 10:00:00'), ('stock-rollback', 't', 'l', 1, '2026-11-01 10:00:00');
-- a number as the key, milliseconds as the time
CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key BIGINT, consumer_status ENUM('0','1'), consumer_timestamp BIGINT, PRIMARY KEY (group_name, msg_tag, msg_key));
INSERT INTO o VALUES ('stock-rollback', 't', 20261121, '1', 1793527200000);
-- MyISAM
CREATE TABLE o (group_name VARCHAR(50), msg_tag VARCHAR(50), msg_key VARCHAR(50), consumer_status INT, consumer_timestamp TIME, PRIMARY KEY (group_name, msg_tag, msg_key)) ENGINE=MyISAM CHARSET=utf8mb4;
INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, NULL);
