# needs: ssconvert
# Gnumeric, as spreadsheets do, makes a double of a number in a CSV file.
. ./check.sh

# Prints a query's result after its way through a spreadsheet.
through_spreadsheet() { # query
    command psql -Xqt --csv -c "$1" >"$directory/in.csv"
    ssconvert "$directory/in.csv" "$directory/sheet.xlsx" 2>/dev/null
    ssconvert "$directory/sheet.xlsx" "$directory/out.csv" 2>/dev/null
    cat "$directory/out.csv"
}

psql -c "INSERT INTO orders (item) SELECT n FROM generate_series(1, 49) AS n"
ids=$(psql -c 'SELECT id FROM orders ORDER BY id')
check "$([ "$(through_spreadsheet 'SELECT id FROM orders ORDER BY id')" = "$ids" ] || echo rounded)" \
    rounded 'a number is rounded'
short=$(psql -c 'SELECT snowflake_to_text(id, 58) FROM orders ORDER BY id')
check "$(through_spreadsheet 'SELECT snowflake_to_text(id, 58) FROM orders ORDER BY id')" "$short" \
    'text of base 58 is exact'
