-- A database of the release that recorded the version of the tables in `alembic_version`.
PRAGMA application_id=1397773123;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0007');
CREATE TABLE copied (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	document INTEGER NOT NULL,
	start INTEGER NOT NULL,
	"match" INTEGER NOT NULL,
	length INTEGER NOT NULL,
	CONSTRAINT pk_copied PRIMARY KEY (run, number),
	CONSTRAINT fk_copied_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "copied" VALUES(1,1,1,0,0,3,1,4);
INSERT INTO "copied" VALUES(1,2,2,0,-1,5,1,4);
CREATE TABLE decision (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	node INTEGER NOT NULL,
	parent INTEGER NOT NULL,
	position INTEGER NOT NULL,
	token INTEGER NOT NULL,
	p FLOAT,
	q FLOAT,
	u FLOAT,
	rule SMALLINT NOT NULL,
	outcome SMALLINT NOT NULL,
	draft_span INTEGER NOT NULL,
	verify_span INTEGER NOT NULL,
	top_p JSON NOT NULL,
	top_q JSON NOT NULL,
	CONSTRAINT pk_decision PRIMARY KEY (run, number),
	CONSTRAINT fk_decision_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "decision" VALUES(1,1,1,0,0,-1,5,4,0.15,NULL,0.0245,2,1,-1,1,'[[4,0.5],[5,0.25]]','[]');
INSERT INTO "decision" VALUES(1,2,1,0,1,0,6,5,0.625,NULL,NULL,0,2,-1,-1,'[]','[]');
INSERT INTO "decision" VALUES(1,3,1,0,2,1,7,10,0.625,NULL,NULL,0,2,-1,-1,'[]','[]');
INSERT INTO "decision" VALUES(1,4,1,0,3,2,8,1,0.625,NULL,NULL,0,2,-1,-1,'[]','[]');
INSERT INTO "decision" VALUES(1,5,1,0,-1,-1,5,3,0.625,NULL,0.788,3,3,-1,1,'[[3,0.5],[4,0.25]]','[]');
INSERT INTO "decision" VALUES(1,6,2,0,0,-1,6,3,0.525,NULL,0.0229,2,0,-1,2,'[[3,0.5],[4,0.25]]','[]');
INSERT INTO "decision" VALUES(1,7,2,0,1,0,7,3,0.15,NULL,0.459,2,1,-1,2,'[[3,0.5],[4,0.25]]','[]');
INSERT INTO "decision" VALUES(1,8,2,0,2,1,8,3,0.625,NULL,NULL,0,2,-1,-1,'[]','[]');
INSERT INTO "decision" VALUES(1,9,2,0,3,2,9,3,0.625,NULL,NULL,0,2,-1,-1,'[]','[]');
INSERT INTO "decision" VALUES(1,10,2,0,-1,-1,7,7,0.625,NULL,0.4462,3,3,-1,2,'[[7,0.5],[8,0.25]]','[]');
CREATE TABLE document (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	document INTEGER NOT NULL,
	tokens JSON NOT NULL,
	CONSTRAINT pk_document PRIMARY KEY (run, number),
	CONSTRAINT fk_document_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "document" VALUES(1,1,0,'[1,2,3,4,5,10,1,12,11,8,13,6,7]');
CREATE TABLE occupancy (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	device VARCHAR NOT NULL,
	time BIGINT NOT NULL,
	busy FLOAT NOT NULL,
	memory BIGINT NOT NULL,
	power FLOAT,
	CONSTRAINT pk_occupancy PRIMARY KEY (run, number),
	CONSTRAINT fk_occupancy_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "occupancy" VALUES(1,1,'gpu1',0,0.123,1073741824,130.75);
INSERT INTO "occupancy" VALUES(1,2,'gpu1',20000000,0.148,1093741824,137.0);
CREATE TABLE part (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	span INTEGER NOT NULL,
	kind SMALLINT NOT NULL,
	layer INTEGER NOT NULL,
	start BIGINT NOT NULL,
	"end" BIGINT NOT NULL,
	CONSTRAINT pk_part PRIMARY KEY (run, number),
	CONSTRAINT fk_part_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
CREATE TABLE piece (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	token INTEGER NOT NULL,
	text VARCHAR NOT NULL,
	CONSTRAINT pk_piece PRIMARY KEY (run, number),
	CONSTRAINT fk_piece_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "piece" VALUES(1,1,1,' cat');
INSERT INTO "piece" VALUES(1,2,12,' purred');
INSERT INTO "piece" VALUES(1,3,4,' a');
INSERT INTO "piece" VALUES(1,4,9,' 猫');
INSERT INTO "piece" VALUES(1,5,3,' <b>on</b>');
INSERT INTO "piece" VALUES(1,6,2,' sat');
INSERT INTO "piece" VALUES(1,7,5,' déjà');
INSERT INTO "piece" VALUES(1,8,10,',');
INSERT INTO "piece" VALUES(1,9,11,' and');
INSERT INTO "piece" VALUES(1,10,8,' "mat"');
INSERT INTO "piece" VALUES(1,11,13,'.');
INSERT INTO "piece" VALUES(1,12,6,' vu');
INSERT INTO "piece" VALUES(1,13,7,'
');
CREATE TABLE pooled (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	model SMALLINT NOT NULL,
	window JSON NOT NULL,
	tried JSON NOT NULL,
	gained JSON NOT NULL,
	size INTEGER NOT NULL,
	CONSTRAINT pk_pooled PRIMARY KEY (run, number),
	CONSTRAINT fk_pooled_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
CREATE TABLE round (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	mode SMALLINT NOT NULL,
	drafted INTEGER NOT NULL,
	accepted INTEGER NOT NULL,
	emitted INTEGER NOT NULL,
	time BIGINT NOT NULL,
	span INTEGER NOT NULL,
	CONSTRAINT pk_round PRIMARY KEY (run, number),
	CONSTRAINT fk_round_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "round" VALUES(1,1,1,0,1,4,0,1,26000000,1);
INSERT INTO "round" VALUES(1,2,2,0,1,4,1,2,37050000,2);
CREATE TABLE run (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id VARCHAR NOT NULL,
	created VARCHAR NOT NULL,
	method VARCHAR NOT NULL,
	title VARCHAR NOT NULL,
	config JSON NOT NULL,
	prompts JSON NOT NULL,
	prompt_ids JSON NOT NULL,
	sampling JSON NOT NULL,
	limits JSON NOT NULL,
	runtime VARCHAR NOT NULL,
	profile VARCHAR NOT NULL,
	devices JSON NOT NULL,
	target_path VARCHAR NOT NULL,
	drafter_path VARCHAR NOT NULL,
	environment JSON NOT NULL,
	"group" VARCHAR NOT NULL,
	lossless BOOLEAN NOT NULL,
	version INTEGER NOT NULL,
	status SMALLINT,
	reasons JSON,
	texts JSON,
	time BIGINT,
	error VARCHAR,
	owner_pid INTEGER,
	owner_start FLOAT,
	CONSTRAINT uq_run_run_id UNIQUE (run_id)
);
INSERT INTO "run" VALUES(1,'sample-llma','2025-01-02T03:04:05.678+00:00','llma','LLMA','{"copy":4}','["Tell me about the <cat> & the mat."]','[[1,12,4,9,3]]','{"temperature":0.8,"top_k":0,"top_p":1.0,"seed":7}','{"max_new_tokens":3,"stop":[],"eos":[0]}','virtual','sample-2xGPU','[{"name":"gpu1","role":"target","label":"GPU 1 · target","kind":"virtual"}]','pairs/sample/target','','{"specscope":"0.1.0","pair":"sample","tokens":"scripted"}','',1,5,1,'["length"]','[" <b>on</b> <b>on</b>\n"]',37050000,'',NULL,NULL);
CREATE TABLE span (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	id INTEGER NOT NULL,
	device VARCHAR NOT NULL,
	kind SMALLINT NOT NULL,
	start BIGINT NOT NULL,
	"end" BIGINT NOT NULL,
	model SMALLINT NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	rows INTEGER NOT NULL,
	context INTEGER NOT NULL,
	outcome SMALLINT NOT NULL,
	cells BIGINT NOT NULL,
	rank INTEGER NOT NULL,
	CONSTRAINT pk_span PRIMARY KEY (run, number),
	CONSTRAINT fk_span_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "span" VALUES(1,1,0,'gpu1',0,0,15000000,0,0,0,4,0,0,0,0);
INSERT INTO "span" VALUES(1,2,1,'gpu1',2,15000000,26000000,0,1,0,5,5,0,0,0);
INSERT INTO "span" VALUES(1,3,2,'gpu1',2,26050000,37050000,0,2,0,5,6,0,0,0);
CREATE TABLE token (
	run INTEGER NOT NULL,
	number INTEGER NOT NULL,
	step INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	position INTEGER NOT NULL,
	token INTEGER NOT NULL,
	origin SMALLINT NOT NULL,
	text VARCHAR NOT NULL,
	time BIGINT NOT NULL,
	CONSTRAINT pk_token PRIMARY KEY (run, number),
	CONSTRAINT fk_token_run_run FOREIGN KEY(run) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID
;
INSERT INTO "token" VALUES(1,1,1,0,5,3,3,' <b>on</b>',26000000);
INSERT INTO "token" VALUES(1,2,2,0,6,3,0,' <b>on</b>',37050000);
INSERT INTO "token" VALUES(1,3,2,0,7,7,3,'
',37050000);
CREATE INDEX ix_run_created ON run (created);
CREATE INDEX ix_run_group ON run ("group");
CREATE INDEX ix_span_run_start ON span (run, start);
CREATE INDEX ix_decision_run_draft_span ON decision (run, draft_span);
CREATE INDEX ix_decision_run_step ON decision (run, step);
CREATE INDEX ix_token_run_time ON token (run, time);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run',1);
COMMIT;
