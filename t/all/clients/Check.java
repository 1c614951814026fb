// What the programs of this directory in Java share.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.List;

class Check {
    static String url() {
        return "jdbc:postgresql://" + System.getenv("PGHOST") + ":"
            + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
    }

    static Connection connect(String options) throws Exception {
        return DriverManager.getConnection(
            url() + "?user=" + System.getenv("PGUSER") + "&" + options);
    }

    static void is(Object got, Object wanted, String what) {
        boolean ok = got.equals(wanted);
        System.out.println((ok ? "ok - " : "not ok - ") + what);
        if (!ok) {
            System.out.println("# got " + got + ", wanted " + wanted);
        }
    }

    // The stored ids, in their order.
    static List<Long> stored(String table) throws Exception {
        try (Connection connection = connect("")) {
            List<Long> ids = new ArrayList<>();
            ResultSet rows = connection.createStatement().executeQuery(
                "SELECT id::text FROM " + table + " ORDER BY id");
            while (rows.next()) {
                ids.add(Long.valueOf(rows.getString(1)));
            }
            return ids;
        }
    }
}
