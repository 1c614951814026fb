// needs: postgresql
// pgjdbc: ids are longs.  Generated keys come back from batches, too.  Those of the type
// snowflake are objects of pgjdbc's own, until it is registered.
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;
import org.postgresql.jdbc.PgConnection;
import org.postgresql.util.PGobject;

class UsePgjdbc {
    public static void main(String[] args) throws Exception {
        for (String option : List.of("false", "true")) {
            insert("reWriteBatchedInserts=" + option);
        }
        readType();
    }

    static void register(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            ResultSet oids = statement.executeQuery(
                "SELECT 'snowflake'::regtype::oid::bigint, 'snowflake[]'::regtype::oid::bigint");
            oids.next();
            connection.unwrap(PgConnection.class).getTypeInfo().addCoreType("snowflake",
                (int) oids.getLong(1), Types.BIGINT, "java.lang.Long", (int) oids.getLong(2));
        }
    }

    // The classes that getObject() returns, and of an array's elements, and the JDBC type.
    static List<Object> classes(Connection connection) throws SQLException {
        ResultSet row = connection.createStatement().executeQuery(
            "SELECT id, ids, ids::bigint[] FROM typed WHERE id = 5");
        row.next();
        List<Object> classes = new ArrayList<>(List.of(row.getLong(1), row.getObject(1).getClass()));
        try {
            classes.add(row.getObject(1, Long.class));
        } catch (SQLException exception) {
            classes.add("an error");
        }
        for (int column : List.of(2, 3)) {
            classes.add(((Object[]) row.getArray(column).getArray())[0].getClass());
        }
        classes.add(row.getMetaData().getColumnType(1));
        return classes;
    }

    static void readType() throws Exception {
        try (Connection connection = Check.connect("")) {
            connection.createStatement().execute(
                "CREATE TABLE typed AS SELECT 5::snowflake AS id, '{1,2}'::snowflake[] AS ids");
            Check.is(classes(connection), List.of(5L, PGobject.class, "an error", PGobject.class, Long.class,
                Types.OTHER), "snowflake: getLong() is exact, getObject() a PGobject");
            register(connection);
            Check.is(classes(connection), List.of(5L, Long.class, 5L, PGobject.class, Long.class,
                Types.BIGINT), "registered: a Long; arrays are cast to bigint[]");
            PreparedStatement find = connection.prepareStatement("SELECT FROM typed WHERE id = ? AND id = ANY (?)");
            find.setLong(1, 5);
            find.setArray(2, connection.createArrayOf("bigint", new Long[] {5L}));
            Check.is(find.executeQuery().next(), true, "registered: a long, and an array of bigint, find the row");
        }
    }

    static void insert(String option) throws Exception {
        try (Connection connection = Check.connect(option)) {
            List<Long> ids = new ArrayList<>();
            connection.createStatement().execute("TRUNCATE orders");
            try (PreparedStatement insert = connection.prepareStatement(
                    "INSERT INTO orders (item) VALUES (?)", new String[] {"id"})) {
                for (int n = 0; n < 1000; n++) {
                    insert.setString(1, "item " + n);
                    insert.addBatch();
                }
                insert.executeBatch();
                ResultSet keys = insert.getGeneratedKeys();
                while (keys.next()) {
                    ids.add(keys.getLong(1));
                }
            }
            Check.is(ids, Check.stored("orders"), "executeBatch(), " + option);
        }
    }
}
