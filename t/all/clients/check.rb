# What the programs of this directory in Ruby share.
def check(got, wanted, what)
  puts "#{got == wanted ? 'ok' : 'not ok'} - #{what}"
  puts "# got #{got.inspect}, wanted #{wanted.inspect}" unless got == wanted
end
