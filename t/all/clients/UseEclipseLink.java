// needs: eclipselink postgresql
// EclipseLink: IDENTITY asks for lastval(), which may be another table's id.  A
// QuerySequence asks for the ids before the inserts.
import java.util.List;
import java.util.Map;
import javax.persistence.Entity;
import javax.persistence.EntityManager;
import javax.persistence.GeneratedValue;
import javax.persistence.GenerationType;
import javax.persistence.Id;
import javax.persistence.Persistence;
import javax.persistence.Table;
import org.eclipse.persistence.config.SessionCustomizer;
import org.eclipse.persistence.queries.ValueReadQuery;
import org.eclipse.persistence.sequencing.QuerySequence;
import org.eclipse.persistence.sessions.Session;

public class UseEclipseLink {
    @Entity @Table(name = "posts")
    public static class Post {
        @Id @GeneratedValue(generator = "snowflake")
        public long id;
        public String item = "one";
    }

    @Entity @Table(name = "orders")
    public static class Line {
        @Id @GeneratedValue(strategy = GenerationType.IDENTITY)
        public long id;
        public String item = "one";
    }

    public static class Customizer implements SessionCustomizer {
        public void customize(Session session) {
            QuerySequence snowflake = new QuerySequence("snowflake", 1);
            snowflake.setSelectQuery(new ValueReadQuery("SELECT snowflake_nextval()"));
            session.getLogin().addSequence(snowflake);
        }
    }

    public static void main(String[] args) throws Exception {
        EntityManager manager = Persistence.createEntityManagerFactory("EclipseLink", Map.of(
            "javax.persistence.jdbc.url", Check.url(),
            "javax.persistence.jdbc.user", System.getenv("PGUSER"),
            "javax.persistence.jdbc.password", "")).createEntityManager();

        manager.getTransaction().begin();
        manager.createNativeQuery("CREATE TABLE posts (id bigint PRIMARY KEY, item text)")
            .executeUpdate();
        manager.createNativeQuery("CREATE TABLE visits (id serial PRIMARY KEY)")
            .executeUpdate();
        List<Post> posts = List.of(new Post(), new Post(), new Post());
        posts.forEach(manager::persist);
        manager.getTransaction().commit();
        Check.is(posts.stream().map(post -> post.id).toList(), Check.stored("posts"),
            "QuerySequence: persist() gives the ids");

        manager.getTransaction().begin();
        manager.createNativeQuery("INSERT INTO visits SELECT FROM generate_series(1, 42)")
            .executeUpdate();
        Line line = new Line();
        manager.persist(line);
        manager.flush();
        Check.is(line.id, 42L, "IDENTITY: another table's id, and no error");
        manager.getTransaction().rollback();
        System.exit(0);
    }
}
