// needs: jackc/pgx
// pgx: ids are int64, in batches and by CopyFrom too; those of the type snowflake are,
// too, once it is registered.
package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

func check(ok bool, what string) {
	if ok {
		fmt.Println("ok -", what)
	} else {
		fmt.Println("not ok -", what)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func register(ctx context.Context, conn *pgx.Conn) error {
	var oid, array uint32
	err := conn.QueryRow(ctx, "SELECT 'snowflake'::regtype::oid, 'snowflake[]'::regtype::oid").Scan(&oid, &array)
	if err != nil {
		return err
	}
	conn.ConnInfo().RegisterDataType(pgtype.DataType{Value: &pgtype.Int8{}, Name: "snowflake", OID: oid})
	conn.ConnInfo().RegisterDataType(pgtype.DataType{Value: &pgtype.Int8Array{}, Name: "_snowflake", OID: array})
	return nil
}

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "")
	must(err)
	const insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id, id::text"
	batch := &pgx.Batch{}
	batch.Queue(insert, "one")
	batch.Queue(insert, "two")
	results := conn.SendBatch(ctx, batch)
	count := 0
	for i := 0; i < 2; i++ {
		var id int64
		var text string
		must(results.QueryRow().Scan(&id, &text))
		if fmt.Sprint(id) == text {
			count++
		}
	}
	must(results.Close())
	check(count == 2, "RETURNING in a batch")

	_, err = conn.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"item"},
		pgx.CopyFromRows([][]interface{}{{"three"}, {"four"}}))
	must(err)
	must(conn.QueryRow(ctx, "SELECT count(DISTINCT id) FROM orders").Scan(&count))
	check(count == 4, "CopyFrom() gives ids")

	var all []int64
	must(conn.QueryRow(ctx, "SELECT array_agg(id) FROM orders").Scan(&all))
	check(len(all) == 4, "an array of ids is a []int64")

	_, err = conn.Exec(ctx, "CREATE TABLE typed AS SELECT 5::snowflake AS id, '{1,2}'::snowflake[] AS ids")
	must(err)
	const typed = "SELECT id, ids FROM typed WHERE id = 5"
	var id int64
	var ids []int64
	check(conn.QueryRow(ctx, typed).Scan(&id, &ids) != nil, "snowflake: an error")
	must(register(ctx, conn))
	must(conn.QueryRow(ctx, typed).Scan(&id, &ids))
	check(id == 5 && fmt.Sprint(ids) == "[1 2]", "registered: int64, and []int64")
	must(conn.QueryRow(ctx, "SELECT count(*) FROM typed WHERE id = ANY($1)", []int64{id}).Scan(&count))
	check(count == 1, "registered: a []int64 finds the row")
	must(conn.QueryRow(ctx, "SELECT count(*) FROM typed WHERE ids @> $1", ids).Scan(&count))
	check(count == 1, "registered: a []int64 is taken as the array's type")
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"typed"}, []string{"id", "ids"},
		pgx.CopyFromRows([][]interface{}{{id, ids}}))
	check(err == nil, "registered: CopyFrom()")
}
