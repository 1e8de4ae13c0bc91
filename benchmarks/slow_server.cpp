// A web server for benchmarks: serves a folder's files, whole or by ranges, with a delay before each answer.
//   slow_server FOLDER PORT MILLISECONDS
// One thread, HTTP/1.1 with connections kept alive; GET and HEAD.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

using Clock = std::chrono::steady_clock;

struct Connection {
  std::string request, head;
  int file = -1;
  off_t at = 0;
  size_t left = 0, sent = 0;
  bool answering = false, due = false;
};

struct Due {
  Clock::time_point when;
  int socket;
  bool operator<(const Due& other) const { return when > other.when; }
};

std::string folder;
std::map<std::string, int> files;
std::unordered_map<int, Connection> connections;
std::priority_queue<Due> late;
int waiter;

std::string header(const std::string& request, const char* name) {
  const auto at = request.find(name);
  if (at == std::string::npos) return {};
  return request.substr(at + std::strlen(name), request.find("\r\n", at) - at - std::strlen(name));
}

void prepare(Connection& connection) {
  const std::string& request = connection.request;
  const auto space = request.find(' '), end = request.find(' ', space + 1);
  const bool head = request.compare(0, 4, "HEAD") == 0;
  const std::string path = folder + request.substr(space + 1, end - space - 1);
  auto& file = files.try_emplace(path, -1).first->second;
  if (file < 0) file = ::open(path.c_str(), O_RDONLY);
  struct stat status{};
  if (file < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    connection.head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    connection.left = 0;
    return;
  }
  size_t first = 0, last = static_cast<size_t>(status.st_size) - 1;
  std::string range = header(request, "ange: bytes=");
  char line[512];
  if (!range.empty()) {
    const auto dash = range.find('-');
    if (dash == 0) {
      first = last + 1 - std::stoul(range.substr(1));
    } else {
      first = std::stoul(range);
      if (dash + 1 < range.size())
        last = std::min(last, static_cast<size_t>(std::stoul(range.substr(dash + 1))));
    }
    std::snprintf(
        line, sizeof(line),
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %zu-%zu/%lld\r\nContent-Length: %zu\r\n"
        "ETag: \"%lld\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n\r\n",
        first, last, static_cast<long long>(status.st_size), last + 1 - first,
        static_cast<long long>(status.st_mtim.tv_sec));
  } else {
    std::snprintf(line, sizeof(line),
                  "HTTP/1.1 200 OK\r\nContent-Length: %lld\r\nETag: \"%lld\"\r\n"
                  "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n\r\n",
                  static_cast<long long>(status.st_size), static_cast<long long>(status.st_mtim.tv_sec));
  }
  connection.head = line;
  connection.file = file;
  connection.at = static_cast<off_t>(first);
  connection.left = head ? 0 : last + 1 - first;
}

void watch(int socket, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = socket;
  if (::epoll_ctl(waiter, EPOLL_CTL_MOD, socket, &event) != 0)
    ::epoll_ctl(waiter, EPOLL_CTL_ADD, socket, &event);
}

void drop(int socket) {
  ::close(socket);
  connections.erase(socket);
}

void answer(int socket) {
  Connection& connection = connections[socket];
  while (connection.sent < connection.head.size()) {
    const ssize_t n = ::send(socket, connection.head.data() + connection.sent,
                             connection.head.size() - connection.sent, connection.left ? MSG_MORE : 0);
    if (n < 0 && errno == EAGAIN) return watch(socket, EPOLLOUT);
    if (n <= 0) return drop(socket);
    connection.sent += static_cast<size_t>(n);
  }
  while (connection.left > 0) {
    const ssize_t n = ::sendfile(socket, connection.file, &connection.at, connection.left);
    if (n < 0 && errno == EAGAIN) return watch(socket, EPOLLOUT);
    if (n <= 0) return drop(socket);
    connection.left -= static_cast<size_t>(n);
  }
  connection.request.clear();
  connection.sent = 0;
  connection.answering = connection.due = false;
  watch(socket, EPOLLIN);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  std::signal(SIGPIPE, SIG_IGN);
  folder = arguments[1];
  const auto delay = std::chrono::microseconds(static_cast<long>(std::atof(arguments[3]) * 1000));
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(arguments[2])));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener, 4096) != 0) {
    std::perror("slow_server");
    return 1;
  }
  waiter = ::epoll_create1(0);
  watch(listener, EPOLLIN);
  std::puts("ready");
  std::fflush(stdout);
  std::vector<epoll_event> events(1024);
  for (;;) {
    int wait = -1;
    if (!late.empty()) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(late.top().when - Clock::now());
      wait = left.count() <= 0 ? 0 : static_cast<int>((left.count() + 999) / 1000);
    }
    const int ready = ::epoll_wait(waiter, events.data(), static_cast<int>(events.size()), wait);
    for (int i = 0; i < ready; ++i) {
      const int socket = events[static_cast<size_t>(i)].data.fd;
      if (socket == listener) {
        int accepted;
        while ((accepted = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
          ::setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
          connections[accepted];
          watch(accepted, EPOLLIN);
        }
        continue;
      }
      Connection& connection = connections[socket];
      if (connection.due) {
        answer(socket);
        continue;
      }
      char buffer[4096];
      const ssize_t n = ::recv(socket, buffer, sizeof(buffer), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) {
        drop(socket);
        continue;
      }
      if (n > 0) connection.request.append(buffer, static_cast<size_t>(n));
      if (!connection.answering && connection.request.find("\r\n\r\n") != std::string::npos) {
        prepare(connection);
        connection.answering = true;
        late.push({Clock::now() + delay, socket});
      }
    }
    while (!late.empty() && late.top().when <= Clock::now()) {
      const int socket = late.top().socket;
      late.pop();
      const auto found = connections.find(socket);
      if (found == connections.end()) continue;
      found->second.due = true;
      answer(socket);
    }
  }
}
