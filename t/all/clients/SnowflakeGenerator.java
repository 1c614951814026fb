// Gives Hibernate 3.6 the ids of new entities, a block of them by one query:
//
//     @Id @GeneratedValue(generator = "snowflake")
//     @GenericGenerator(name = "snowflake", strategy = "SnowflakeGenerator")
//     Long id;
//
// By their sources, versions 5 and 6 call generate(SharedSessionContractImplementor,
// Object); session.doReturningWork(connection -> ...) has the connection.
import java.io.Serializable;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayDeque;
import java.util.Properties;
import java.util.Queue;
import org.hibernate.HibernateException;
import org.hibernate.dialect.Dialect;
import org.hibernate.engine.SessionImplementor;
import org.hibernate.id.Configurable;
import org.hibernate.id.IdentifierGenerator;
import org.hibernate.type.Type;

public class SnowflakeGenerator implements IdentifierGenerator, Configurable {
    private final Queue<Long> ids = new ArrayDeque<>();
    private int blockSize;

    @Override
    public void configure(Type type, Properties parameters, Dialect dialect) {
        blockSize = Integer.parseInt(parameters.getProperty("block_size", "50"));
    }

    @Override
    public synchronized Serializable generate(SessionImplementor session, Object entity) {
        if (ids.isEmpty()) {
            try (PreparedStatement query = session.connection()
                    .prepareStatement("SELECT snowflake_nextvals(?)")) {
                query.setInt(1, blockSize);
                ResultSet rows = query.executeQuery();
                while (rows.next()) {
                    ids.add(rows.getLong(1));
                }
            } catch (SQLException error) {
                throw new HibernateException(error);
            }
        }
        return ids.remove();
    }
}
