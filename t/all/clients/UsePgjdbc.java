// needs: postgresql
// pgjdbc: ids are longs.  Generated keys come back from batches, too.
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.List;

class UsePgjdbc {
    public static void main(String[] args) throws Exception {
        for (String option : List.of("false", "true")) {
            insert("reWriteBatchedInserts=" + option);
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
