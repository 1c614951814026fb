# Compiles and runs a program in Java with Debian's libraries.  Programs of other
# libraries, which may not be installed, are not compiled.
set -e
libraries=.
for name in antlr commons-collections3 dom4j eclipselink eclipselink-jpa-2.1-spec \
    geronimo-jta-1.2-spec hibernate-commons-annotations hibernate-core javassist \
    postgresql slf4j-api slf4j-nop
do
    libraries=$libraries:/usr/share/java/$name.jar
done
classes=$(mktemp -d)
trap 'rm -r "$classes"' EXIT
javac -nowarn -proc:none -cp "$libraries" -sourcepath . -d "$classes" "$1" \
    $(sed -n 's/^\/\/ with: //p' "$1")
java -Xshare:auto -XX:TieredStopAtLevel=1 --add-opens java.base/java.lang=ALL-UNNAMED \
    -cp "$classes:$libraries" "${1%.java}"
