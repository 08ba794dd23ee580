# A script: cmake -DNAMESPACE=... "-DFILES=a/x.html b/y.js" -DOUT=file.cc -P embed.cmake
# Writes OUT, which has the text of each file as `extern const std::string_view x_html`, in the namespace.
separate_arguments(FILES)
set(out "#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
foreach(file ${FILES})
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  string(APPEND out "extern const std::string_view ${name};\nconst std::string_view ${name} = R\"embed(${text})embed\";\n")
endforeach()
file(WRITE ${OUT} "${out}}\n")
