-- What an administrator creates before the first gateway starts; see docs/cluster.md. psql runs it as a superuser, with the
-- password of the owner in the environment: BASEGATE_DATABASE_PASSWORD=… psql -v ON_ERROR_STOP=1 -f roles.sql
\getenv password BASEGATE_DATABASE_PASSWORD

-- The owner of the database. It migrates, and gateways may serve with it.
CREATE ROLE basegate LOGIN PASSWORD :'password';
-- Groups. The migrations grant them what they need: a role in the first may serve with database.migrate: false, and a role
-- in the second may only read.
CREATE ROLE basegate_runtime NOLOGIN;
CREATE ROLE basegate_reader NOLOGIN;

CREATE DATABASE basegate OWNER basegate ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE basegate FROM PUBLIC;
GRANT CONNECT ON DATABASE basegate TO basegate_runtime, basegate_reader;
