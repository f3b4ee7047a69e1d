// Runs the program of one core on the host: its DMA channels fill and empty buffers in turn, from and to files.
//
//   core_host PORTS OUTPUTS     a line of PORTS: lock of acquire, lock of release, bytes of an object, file of objects or "-" for the core's
//                               own, then the places of the buffers. Ends when an input has no more objects.
//
// Ends with 4 to 6 for locks that are used in another order. Released inputs are overwritten: a core must not read them any more.

#include "aie2_host.h"

#undef main

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

int core_main();

struct Port {
  unsigned acquire, release, bytes;
  std::ifstream objects;
  bool produces = false, is_held = false;
  std::vector<unsigned> places;
  unsigned next = 0;
};

static std::vector<Port> ports;
static std::ofstream outputs;

static void fail(int status, const char *what, unsigned lock) {
  fprintf(stderr, "%s of lock %u\n", what, lock);
  exit(status);
}

void acquire_greater_equal(unsigned lock, unsigned count) {
  for (Port &port : ports) {
    if (port.acquire != lock || count != 1) continue;
    if (port.is_held) fail(4, "second acquire", lock);
    unsigned char *object = core_memory + port.places[port.next];
    if (port.produces) {
      memset(object, 0x55, port.bytes);
    } else if (!port.objects.read((char *)object, port.bytes)) {
      outputs.flush();
      exit(0);
    }
    port.is_held = true;
    return;
  }
  fail(5, "acquire", lock);
}

void release(unsigned lock, int count) {
  for (Port &port : ports) {
    if (port.release != lock || count != 1 || !port.is_held) continue;
    unsigned char *object = core_memory + port.places[port.next];
    if (port.produces)
      outputs.write((char *)object, port.bytes);
    else
      memset(object, 0xaa, port.bytes);
    port.is_held = false;
    port.next = (port.next + 1) % port.places.size();
    return;
  }
  fail(6, "release", lock);
}

int main(int, char **arguments) {
  std::ifstream lines(arguments[1]);
  outputs.open(arguments[2], std::ios::binary);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Port port;
    std::string file;
    words >> port.acquire >> port.release >> port.bytes >> file;
    for (unsigned place; words >> place;) port.places.push_back(place);
    port.produces = file == "-";
    if (!port.produces) port.objects.open(file, std::ios::binary);
    ports.push_back(std::move(port));
  }
  return core_main();
}
