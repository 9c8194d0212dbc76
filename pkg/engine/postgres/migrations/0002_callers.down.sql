DROP TABLE meta;
DROP TABLE callers;
