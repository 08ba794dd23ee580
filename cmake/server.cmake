# The OpenAI server, the clients of servers, and the chat code that both share with the terminal.
find_package(Boost 1.74 REQUIRED)
sluice_folder(chat chat USES engine text)
# Boost is slow to compile, so only server/http*.cc and client/http_client.cc include it.
sluice_folder(server server USES chat grammar)
sluice_folder(client client USES text)
# Embeds the files of the chat page.
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/server/page/*)
list(JOIN page_files " " page_list)
set(page ${CMAKE_BINARY_DIR}/page_files.cc)
add_custom_command(OUTPUT ${page} DEPENDS ${page_files} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM
                   COMMAND ${CMAKE_COMMAND} -DNAMESPACE=sluice::page "-DFILES=${page_list}" -DOUT=${page}
                           -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake)
target_sources(sluice_server PRIVATE ${page})
target_compile_definitions(sluice_server PRIVATE SLUICE_VERSION="${PROJECT_VERSION}")
foreach(target sluice_server sluice_client)
  target_link_libraries(${target} PUBLIC nlohmann_json::nlohmann_json PRIVATE Boost::headers Threads::Threads)
  if(SLUICE_SANITIZE STREQUAL "thread")
    # ThreadSanitizer does not support fences. They are not needed here, because other threads enter through a mutex.
    target_compile_definitions(${target} PRIVATE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endforeach()
target_link_libraries(sluice_client PRIVATE sluice_report)
sluice_cold(sluice_chat sluice_server sluice_client)
sluice_unity(OBJECTS 1 sluice_chat sluice_client)
sluice_unity(OBJECTS 2 sluice_server)
