import java.io.DataInputStream;
import java.net.ServerSocket;
import java.net.Socket;

/** A TCP server that sends everything back, and its client, which writes 160 bytes every 20 ms. */
public class Echo {
    static final int MESSAGES = 200;

    static void serve() throws Exception {
        try (ServerSocket listener = new ServerSocket(7000); Socket stream = listener.accept()) {
            stream.setTcpNoDelay(true);
            stream.getInputStream().transferTo(stream.getOutputStream());
        }
    }

    static void ask() throws Exception {
        byte[] data = new byte[160];
        try (Socket stream = new Socket(System.getenv("SERVER_ADDRESS"), 7000)) {
            stream.setTcpNoDelay(true);
            DataInputStream input = new DataInputStream(stream.getInputStream());
            for (int message = 0; message < MESSAGES; message++) {
                stream.getOutputStream().write(data);
                input.readFully(data);
                Thread.sleep(20);
            }
        }
        System.out.println(MESSAGES + " messages came back");
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("server")) {
            serve();
        } else {
            ask();
        }
    }
}
