# usage: cmake -DNAMESPACE=... "-DFILES=a/x.html b/y.js" -DOUT=file.cc -P embed.cmake
# Writes the C++ file OUT, which defines the text of each file in NAMESPACE, for example `extern const std::string_view x_html`.
separate_arguments(FILES)
set(out "#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
foreach(file ${FILES})
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  string(APPEND out "extern const std::string_view ${name};\nconst std::string_view ${name} = R\"embed(${text})embed\";\n")
endforeach()
file(WRITE ${OUT} "${out}}\n")
