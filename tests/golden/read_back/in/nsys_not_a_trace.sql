CREATE TABLE photos (id);
INSERT INTO photos VALUES (1);
