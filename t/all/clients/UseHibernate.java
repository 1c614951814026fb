// needs: hibernate-core postgresql
// with: SnowflakeGenerator.java
// Hibernate: the pooled optimizer repeats ids; SnowflakeGenerator.java does not,
// and inserts in batches.  The reader of doc/outbox.md misses no row that Hibernate
// has inserted, because Hibernate does not know the column "position".
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import javax.persistence.Column;
import javax.persistence.Entity;
import javax.persistence.GeneratedValue;
import javax.persistence.GenerationType;
import javax.persistence.Id;
import javax.persistence.Table;
import org.hibernate.HibernateException;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.GenericGenerator;
import org.hibernate.annotations.Parameter;
import org.hibernate.cfg.Configuration;
import org.hibernate.dialect.PostgreSQLDialect;
import org.hibernate.engine.SessionImplementor;
import org.hibernate.id.IdentifierGenerator;

public class UseHibernate {
    @Entity @Table(name = "posts")
    public static class Post {
        @Id @GeneratedValue(generator = "snowflake")
        @GenericGenerator(name = "snowflake", strategy = "SnowflakeGenerator")
        public Long id;
        public String item = "one";
    }

    @Entity @Table(name = "orders")
    public static class Order {
        @Id @GeneratedValue(strategy = GenerationType.IDENTITY)
        public Long id;
        public String item = "one";
    }

    @Entity @Table(name = "pooled")
    public static class Pooled {
        @Id @GeneratedValue(generator = "pooled")
        @GenericGenerator(name = "pooled", strategy = "enhanced-sequence", parameters = {
            @Parameter(name = "optimizer", value = "pooled"),
            @Parameter(name = "increment_size", value = "50")})
        public Long id;
    }

    @Entity @Table(name = "outbox")
    public static class Event {
        @Id @GeneratedValue(generator = "snowflake")
        @GenericGenerator(name = "snowflake", strategy = "SnowflakeGenerator")
        public Long id;
        public String event = "one";
    }

    @Entity @Table(name = "typed")
    public static class Plain {
        @Id
        public Long id;
    }

    @Entity @Table(name = "typed")
    public static class Typed {
        @Id @Column(columnDefinition = "snowflake")
        public Long id;
    }

    // Returns whether Hibernate starts with hbm2ddl=validate and reads the key.
    static boolean validates(Properties properties, Class<?> entity) {
        Properties validate = new Properties();
        validate.putAll(properties);
        validate.put("hibernate.hbm2ddl.auto", "validate");
        try {
            Session session = new Configuration().setProperties(validate)
                .addAnnotatedClass(entity).buildSessionFactory().openSession();
            session.beginTransaction();
            boolean found = session.get(entity, 5L) != null;
            session.getTransaction().commit();
            session.close();
            return found;
        } catch (HibernateException exception) {
            System.out.println("# " + exception.getMessage());
            return false;
        }
    }

    // A dialect whose sequences are snowflake_nextval().
    public static class Dialect extends PostgreSQLDialect {
        @Override
        public String getSequenceNextValString(String name) {
            return "SELECT snowflake_nextval()";
        }
    }

    static List<Long> save(SessionFactory factory, List<?> entities) {
        Session session = factory.openSession();
        session.beginTransaction();
        List<Long> ids = new ArrayList<>();
        entities.forEach(entity -> ids.add((Long) session.save(entity)));
        session.getTransaction().commit();
        session.close();
        return ids;
    }

    // Inserts and flushes 100 events.
    static Session begin(SessionFactory factory) {
        Session session = factory.openSession();
        session.beginTransaction();
        for (int n = 0; n < 100; n++) {
            session.save(new Event());
        }
        session.flush();
        return session;
    }

    static int read(Connection connection) throws Exception {
        ResultSet row = connection.createStatement().executeQuery(
            "SELECT count(*) FROM read_outbox('mail')");
        row.next();
        return row.getInt(1);
    }

    // The transaction that has drawn the first ids commits last.
    static List<Integer> useOutbox(SessionFactory factory, Connection connection)
            throws Exception {
        Session late = begin(factory);
        begin(factory).getTransaction().commit();
        List<Integer> delivered = new ArrayList<>(List.of(read(connection)));
        late.getTransaction().commit();
        begin(factory).getTransaction().commit();
        delivered.add(read(connection));
        return delivered;
    }

    public static void main(String[] args) throws Exception {
        String page = Files.readString(Path.of("../../../doc/examples/outbox.sql"));
        Connection connection = Check.connect("");
        connection.createStatement().execute(page.substring(
            page.indexOf("CREATE TABLE outbox"), page.indexOf("\n$$;")) + "\n$$; INSERT INTO consumer VALUES ('mail')");
        Properties properties = new Properties();
        properties.put("hibernate.connection.url", Check.url());
        properties.put("hibernate.connection.username", System.getenv("PGUSER"));
        properties.put("hibernate.dialect", Dialect.class.getName());
        properties.put("hibernate.jdbc.batch_size", "50");
        properties.put("hibernate.hbm2ddl.auto", "update");
        properties.put("hibernate.generate_statistics", "true");
        SessionFactory factory = new Configuration().setProperties(properties)
            .addAnnotatedClass(Post.class).addAnnotatedClass(Order.class)
            .addAnnotatedClass(Pooled.class).addAnnotatedClass(Event.class).buildSessionFactory();

        List<Post> posts = new ArrayList<>();
        for (int n = 0; n < 1000; n++) {
            posts.add(new Post());
        }
        Check.is(save(factory, posts), Check.stored("posts"), "SnowflakeGenerator: 1000 ids");
        Check.is(factory.getStatistics().getPrepareStatementCount(), 1L,
            "SnowflakeGenerator: all rows by one prepared INSERT, in batches");
        Check.is(save(factory, List.of(new Order(), new Order())), Check.stored("orders"),
            "IDENTITY: the ids by RETURNING");

        Check.is(useOutbox(factory, connection), List.of(0, 300),
            "SnowflakeGenerator: read_outbox() delivers every row");

        connection.createStatement().execute("CREATE TABLE typed AS SELECT 5::bigint AS id");
        Check.is(validates(properties, Plain.class), true, "bigint: hbm2ddl=validate starts");
        connection.createStatement().execute("ALTER TABLE typed ALTER id TYPE snowflake");
        Check.is(validates(properties, Plain.class), false, "snowflake: hbm2ddl=validate does not start");
        Check.is(validates(properties, Typed.class), true, "snowflake, columnDefinition: hbm2ddl=validate starts");

        SessionImplementor session = (SessionImplementor) factory.openSession();
        IdentifierGenerator pooled = session.getFactory()
            .getIdentifierGenerator(Pooled.class.getName());
        TreeSet<Long> distinct = new TreeSet<>();
        for (int n = 0; n < 20000; n++) {
            distinct.add((Long) pooled.generate(session, null));
        }
        System.out.println("# the pooled optimizer: " + distinct.size() + " of 20000 ids are distinct");
        Check.is(distinct.size() < 20000, true, "pooled optimizer: ids repeat");
        System.exit(0);
    }
}
