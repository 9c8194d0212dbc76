CREATE TABLE callers (
    id      text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    doc     json NOT NULL -- signing secrets too: readable by the service's role alone
);
CREATE TABLE meta (
    name  text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);
